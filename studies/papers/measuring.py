"""Times of a model on this machine, in processor time of one thread: other work beside it hardly changes them.

seconds_per_step(config, vocab_size=257, steps=7)       # of training
written_per_second(config.model, vocab_size=257)        # tokens that one lane writes
products_per_second()                                   # FLOP/s, by the clock and on all threads
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from statistics import median

from common.errors import given_by_user
from pipelines.config.run import ModelSettings, TrainConfig


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch compute in so many threads inside the `with`."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds_per_step(config: TrainConfig, vocab_size: int, steps: int) -> float:
    """Processor seconds of the forward and backward passes of a training step, in float32 and without the optimizer.

    Random tokens in a quarter of the lanes are timed, and scaled up. One thread computes. The result is the median of ``steps``
    passes after a slower first one. A kNN memory is full, as in a long book.
    """
    import torch

    from recur_models.memorizing import fill_memory

    lanes = max(config.data.lanes // 4, 1)
    with torch_threads(1):
        with given_by_user(ValueError):  # for example by the pretrained weights' sizes
            model = config.model.build(vocab_size)
        model.recompute = config.recompute
        tokens_BT = torch.randint(vocab_size - 1, (lanes, config.data.segment_length))
        seconds = []
        for _ in range(1 + steps):
            state = model.initial_state(lanes)
            fill_memory(state)
            began = time.process_time()
            model(tokens_BT, state, None, tokens_BT)[0].sum().backward()
            seconds.append(time.process_time() - began)
        return median(seconds[1:]) * config.data.lanes / lanes


def products_per_second() -> float:
    """FLOP/s of matrix products in float32 with all of torch's threads, by the clock: the best of three of 1,024²."""
    import torch

    size = 1024
    a, b = torch.randn(2, size, size)
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds[1:])


def written_per_second(config: ModelSettings, vocab_size: int) -> float:
    """Tokens that this model reads one by one, as in generation, in a second of one thread's processor time.

    The first block, which has no State, is left out; the result is the median of four blocks. A kNN memory is full.
    """
    import torch

    from recur_models.decoding import begin, read
    from recur_models.memorizing import fill_memory

    with torch_threads(1), torch.no_grad():
        model = config.build(vocab_size).eval()
        tokens_BT = torch.randint(vocab_size - 1, (1, 5 * config.block))
        decoder = model.incremental_decoder()
        reading = begin(decoder, lanes=1)
        fill_memory(reading.state)
        rates = []
        for block_BW in tokens_BT.split(config.block, 1):
            began = time.process_time()
            for token_B1 in block_BW.split(1, 1):
                _, reading = read(decoder, reading, token_B1, keep=1)
            rates.append(config.block / (time.process_time() - began))
        return median(rates[1:])
