"""Settings of a process, every default here with its reason. Settings of a job are in `model.settings`."""

import msgspec


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The talk between JobManager and TaskManagers."""

    call_seconds: float = 2.0
    """Deadline of one call. Control messages take milliseconds; what takes longer is lost."""

    heartbeat_seconds: float = 0.5
    """A TaskManager says that it is alive, with the figures of its slots, this often."""

    lost_after_seconds: float = 4.0
    """A TaskManager that has not reached its JobManager for this long ends what its slots run."""

    given_up_after_seconds: float = 5.0
    """A JobManager that has not heard of a TaskManager for this long replaces it. More than `lost_after_seconds`: it
    has stopped by the time that it is replaced."""

    first_retry_seconds: float = 0.1
    max_retry_seconds: float = 2.0
    """Registration is tried again with a delay that doubles between these two."""


class LeaseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How several JobManagers agree who leads. All of one cluster have the same."""

    beat_seconds: float = 0.5
    """The leader says that it lives this often: two requests to the store."""

    look_seconds: float = 0.25
    """A standby looks this often: two cheap reads."""

    silent_after_seconds: float = 2.0
    """A leader that nobody has heard for this long is replaced. Some beats, so that one slow write is no reason; and
    with the looks around it less than `LinkSettings.lost_after_seconds`, so that what runs is found running."""

    resign_after_seconds: float = 150.0
    """A leader that has not reached the store for this long gives up. Most stores that are away are away for all, and
    come back: until then it waits, and the jobs go on."""


class JobManagerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JobManager process."""

    state_dir: str
    """Journals, checkpoints and graphs of all jobs. Several JobManagers may have the same: one of them leads."""

    host: str = "127.0.0.1"
    """Interface for gRPC and REST. Neither knows who calls, so other hosts must be let in on purpose."""

    port: int = 6123
    """gRPC, for TaskManagers; 0: any free one."""

    rest_port: int = 8081
    """REST, for people and tools; 0: any free one."""

    share_ports: bool = False
    """Bind with SO_REUSEPORT: a supervisor holds the ports, so that a restart finds them free."""

    standby: bool = True
    """When another JobManager leads: wait for its end. False: refuse to start (C001)."""

    advertise: str = ""
    """Where others reach `host`, when that is not a name they know: 0.0.0.0, say."""

    max_body_bytes: int = 64 * 1024 * 1024
    """Largest job graph that REST takes; the same as the limit of a gRPC message that carries parts of it."""

    link: LinkSettings = LinkSettings()
    lease: LeaseSettings = LeaseSettings()


class TaskManagerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TaskManager process."""

    id: str
    jobmanager: str
    """host:port of its gRPC service; several, with commas between, when there are standbys."""

    slots: int = 1
    """Slot processes; about one per core."""

    host: str = "127.0.0.1"
    """Where the JobManager and other slots reach this process and its slots."""

    stuck_after_seconds: float = 30.0
    """A slot whose loop has not come round for this long is ended, with the stack as the reason (P008)."""

    link: LinkSettings = LinkSettings()
