"""A slot that does what the name of its job says; stands in for the real one where only processes matter."""

import os
import socket

import msgspec

from penstock.model.ids import SlotId, SubtaskId, VertexId
from penstock.model.messages import (
    Committed,
    Deploy,
    InputEnded,
    Running,
    SlotInfo,
    SlotReady,
    SlotReport,
    ToSlot,
    Trigger,
)
from penstock.taskmanager.control import FrameReader, encode_frame


def entry(control: socket.socket, slot: SlotId, host: str) -> None:
    control.sendall(encode_frame(SlotReady(info=SlotInfo(slot=slot, address=f"{host}:1", pid=os.getpid()))))
    frames = FrameReader(msgspec.json.Decoder(ToSlot))
    while data := control.recv(65536):
        for message in frames.feed(data):
            _obey(control, slot, message)
    os._exit(0)


def entry_of_one_good_slot(control: socket.socket, slot: SlotId, host: str) -> None:
    if slot.index > 0:
        os._exit(3)
    entry(control, slot, host)


def _obey(control: socket.socket, slot: SlotId, message: ToSlot) -> None:
    if isinstance(message, Deploy):
        job, attempt = message.deployment.job, message.deployment.attempt
        if job == "exits":
            os._exit(7)
        control.sendall(encode_frame(Running(job=job, attempt=attempt, slot=slot)))
        if job == "stuck":
            report = SlotReport(
                job=job, attempt=attempt, slot=slot, tasks=(), stuck_seconds=31.0, stuck_stack='in operator "spin"'
            )
            control.sendall(encode_frame(report))
    elif isinstance(message, Trigger):
        subtask = SubtaskId(VertexId("v"), message.checkpoint)
        control.sendall(encode_frame(InputEnded(job=message.job, attempt=message.attempt, subtask=subtask)))
    else:
        control.sendall(
            encode_frame(Committed(job=message.job, attempt=message.attempt, checkpoint=message.checkpoint, slot=slot))
        )
