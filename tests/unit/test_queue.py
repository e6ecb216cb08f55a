import asyncio

from ddpjob.controller.queue import KeyedQueue


async def test_a_key_in_line_is_not_added_twice() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 1


async def test_a_key_in_work_comes_again_and_is_never_shared() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    assert len(queue) == 0
    queue.done("a")
    assert await queue.get() == "a"


async def test_a_timer_fires_once_and_the_earlier_wins() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 60)
    queue.add_after("a", 0.01)
    async with asyncio.timeout(200):
        assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_pauses_double_up_to_the_cap_and_start_again_after_success() -> None:
    queue: KeyedQueue[str] = KeyedQueue(first=1.0, cap=4.0)
    pauses = [queue.retry("a") for _ in range(6)]
    for pause, base in zip(pauses, [1, 2, 4, 4, 4, 4], strict=True):
        assert base / 2 <= pause <= base
    queue.succeeded("a")
    assert queue.retry("a") <= 1.0
    assert queue.retry("b", at_least=30.0) == 30.0


async def test_a_deadline_cuts_the_back_off_short_but_not_its_least_pause() -> None:
    queue: KeyedQueue[str] = KeyedQueue(first=60.0)
    assert queue.retry("a", at_least=2.0, at_most=1.0) == 2.0
    assert queue.retry("b", at_most=0.01) == 0.01
    assert queue.retry("c", at_most=-1.0) == 0.0
    async with asyncio.timeout(200):
        assert {await queue.get(), await queue.get()} == {"b", "c"}


async def test_whoever_adds_a_key_cuts_its_back_off_short_but_not_its_least_pause() -> None:
    queue: KeyedQueue[str] = KeyedQueue(first=60.0)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    queue.retry("a", at_least=0.2)
    for _ in range(10):
        queue.add("a")
    assert len(queue) == 0
    async with asyncio.timeout(200):
        assert await queue.get() == "a"
    assert loop.time() - begin >= 0.2
    queue.done("a")
    queue.add("a")
    assert len(queue) == 1, "and no longer than that"
    queue.retry("c", at_least=0.05)
    queue.add("c")
    queue._held_until["c"] += 0.05  # as if the timer were early: some are, by a millisecond
    async with asyncio.timeout(200):
        assert [await queue.get(), await queue.get()] == ["a", "c"]
    queue.retry("b")
    queue.add("b")
    assert len(queue) == 1, "a pause without a least one is cut short altogether"


async def test_news_that_came_during_the_work_keep_the_least_pause_too() -> None:
    queue: KeyedQueue[str] = KeyedQueue(first=600.0, cap=600.0)
    queue.add("a")
    key = await queue.get()
    queue.add(key)
    assert queue.retry(key, at_least=0.1) == 0.1, "an edit does not wait for the whole back-off"
    queue.done(key)
    assert len(queue) == 0
    async with asyncio.timeout(200):
        assert await queue.get() == "a"
