import asyncio

import pytest

from penstock.testing.processes import Process, VirtualLoop
from penstock.testing.world import Exhausted, World

FOREVER = 10**12


def make_loop(world: World) -> tuple[Process, VirtualLoop, list[BaseException]]:
    process, errors = Process(world, "p", pid=1), list[BaseException]()
    return process, VirtualLoop(process, thread_delay_us=lambda: 500, on_error=errors.append), errors


def run(world: World, limit_us: int = FOREVER) -> None:
    world.run(until=lambda: False, limit_us=limit_us)


def test_events_of_one_instant_come_in_an_order_that_the_seed_decides() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), list[int]()
        for number in range(8):
            world.after(10, f"event {number}", lambda number=number: seen.append(number))
        run(world)
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_a_world_without_end_is_stopped() -> None:
    world = World(0, max_steps=50)

    def again() -> None:
        world.after(1, "", again)

    again()
    with pytest.raises(Exhausted):
        run(world)


def test_a_paused_process_does_everything_later_and_in_order() -> None:
    world, seen = World(0), list[tuple[int, int]]()
    process = Process(world, "p", pid=1)
    for delay in (10, 20, 30):
        process.after(delay, "", lambda delay=delay: seen.append((delay, world.now_us)))
    world.after(15, "", lambda: process.pause(100))
    run(world)
    assert seen == [(10, 10), (20, 115), (30, 115)]


def test_a_dead_process_does_nothing_more() -> None:
    world, seen = World(0), list[str]()
    process = Process(world, "p", pid=1)
    process.at_end(lambda: seen.append("closed"))
    process.after(10, "", lambda: seen.append("worked"))
    process.kill("test")
    run(world)
    assert seen == ["closed"]


def test_coroutines_run_in_virtual_time() -> None:
    world = World(0)
    _, loop, errors = make_loop(world)
    seen: list[object] = []

    async def work() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(3600))
            tasks.create_task(queue.put(7))
            seen.append(await queue.get())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await queue.get()
            seen.append(await asyncio.to_thread(lambda: world.now_us))
        seen.append(asyncio.get_running_loop().time())

    loop.create_task(work())
    run(world)
    assert seen == [7, 2_000_500, 3600.0]
    assert errors == []


def test_coroutines_of_a_dead_process_stop_and_are_put_away_quietly() -> None:
    world = World(0)
    process, loop, errors = make_loop(world)
    seen: list[str] = []

    async def work() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(10))
            await asyncio.sleep(1)
            seen.append("never")

    loop.create_task(work())
    world.after(500_000, "", lambda: process.kill("test"))
    run(world)
    world.close()
    assert seen == []
    assert errors == []
