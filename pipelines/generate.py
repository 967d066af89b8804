"""Continue a text with a trained model, printing as it writes, in constant memory.

    python -m pipelines.generate runs/demo-rec --file story.txt --max-new-tokens 1000
    python -m pipelines.generate exported/demo-rec --prompt "def main(" --temperature 0.8 --top-p 0.95 --seed 1
    python -m pipelines.generate exported/demo-rec --prompt "def main(" --stop "def " "class "
    python -m pipelines.generate exported/chat --prompt "What is gravity?" --chat --temperature 0

The text is read a few blocks at a time, whatever its length; then a token costs the same after 100 as after 100,000. The
continuation goes to stdout, everything else to stderr. Without a text, a new document is begun. A text ends early before a --stop
string, and where the model writes an id that ends texts, by the exported folder, the weights it began with or the chat template.
benchmarks/long_generation.py compares the speed with that of an export's own generate().
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from common.checks import check_options
from common.errors import UserError
from common.files import read_text
from pipelines.inference.trained import TextTokenizer, Trained, device, load
from pipelines.terminal import cli, options
from pipelines.terminal.commands import typed
from pipelines.terminal.output import discard, printable
from pipelines.terminal.tables import counted

if TYPE_CHECKING:  # torch, which takes seconds to import, comes with the model
    import torch
    from torch import Tensor

CONTEXT = 8
"""Tokens that are decoded again before new ones: how a token reads may depend on what stands before it."""

INCOMPLETE = 3
"""Tokens that may be the beginning of a character: UTF-8 has at most four bytes."""


@dataclass(frozen=True)
class GenerateConfig:
    """A text to continue, the model, and how tokens are chosen."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """Folder or URI of a run (its newest checkpoint is taken), of a checkpoint, or one that pipelines.export made."""
    file: Path | None = None
    """Text file to continue (UTF-8, or as its byte-order mark says); - reads the standard input."""
    prompt: str = field(default="", metadata={options.TEXT: True})
    """Text to continue, instead of a file."""
    max_new_tokens: int = 256
    """Tokens to write."""
    temperature: float = 1.0
    """Divides the logits; 0 always takes the likeliest token."""
    chat: bool = False
    """Send the text as a user's message in the tokenizer's chat template, and write the reply."""
    top_k: int = 0
    """Choose among this number of the likeliest tokens; 0 for all."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that together have this probability."""
    stop: tuple[str, ...] = field(default=(), metadata={options.TEXT: True})
    """Strings before which the text ends, such as $'\\n' in a shell; they are not written."""
    seed: int | None = None
    """Seed of the random choices; by default a new one each time, which is printed. No effect at temperature 0."""
    store: str = ""
    """Store that the run was trained on, for its tokenizer; by default the path in the run's config."""

    def __post_init__(self) -> None:
        if self.file is not None and self.prompt:
            raise UserError("--file and --prompt are both given: choose one text to continue")
        try:
            self.prompt.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                f"--prompt is not UTF-8 text (character {error.start}): convert it first, or name a file with --file"
            ) from None
        if self.chat and self.file is None and not self.prompt:
            raise UserError("--chat is given without a message: add --prompt or --file")
        if "" in self.stop:
            raise UserError("--stop has an empty string: give it text, or leave it out")
        check_options(self, max_new_tokens=1, top_k=0)
        if self.temperature and not 1e-4 <= self.temperature <= 1e4:  # beyond, logits are no longer numbers
            raise UserError(f"--temperature is {self.temperature}: it must be 0 or more, from 0.0001 to 10000 if not 0")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top-p is {self.top_p}: it must be above 0 and at most 1")


def generate(trained: Trained, prompt_ids: list[int], config: GenerateConfig, seed: int) -> Iterator[int]:
    """Ids that continue a document which begins with ``prompt_ids``, or a chat, one by one; the one that ends it is left out."""
    import torch

    from pipelines.inference.writing import write
    from recur_models.decoding import begin, read

    where = device()
    generator = torch.Generator(where).manual_seed(seed)
    decoder = trained.model.to(where).eval().incremental_decoder()
    tokens_BT = torch.tensor([[*([] if config.chat else [trained.bod_id]), *prompt_ids]], device=where)
    with torch.no_grad():
        logits_BTV, reading = read(decoder, begin(decoder, lanes=1), tokens_BT, keep=1)

    def chosen(logits_V: Tensor) -> Tensor:
        return choose(logits_V, config.temperature, config.top_k, config.top_p, generator)

    ids = write(decoder, reading, logits_BTV, trained.bod_id, config.max_new_tokens, chosen, trained.eos_ids)
    yield from (index for index in ids if index not in trained.eos_ids)


def choose(logits_V: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator) -> Tensor:
    """One id, drawn from softmax(logits / temperature) cut to the ``top_k`` likeliest and to ``top_p`` of the probability."""
    import torch

    if temperature == 0:
        return logits_V.argmax()
    logits_V, ids_V = torch.sort(logits_V / temperature, descending=True)
    if top_k:
        logits_V = logits_V[:top_k]
        ids_V = ids_V[:top_k]
    chances_V = torch.softmax(logits_V, dim=-1)
    before_V = chances_V.cumsum(-1) - chances_V  # probability of all likelier ids together
    before_V[0] = -1.0  # the first is always kept, also where so small a top_p is rounded to 0
    chances_V = chances_V.masked_fill(before_V >= top_p, 0.0)
    return ids_V[torch.multinomial(chances_V, 1, generator=generator)[0]]


class TextStream:
    """Text of ids that come one by one: each character once it is complete."""

    def __init__(self, tokenizer: TextTokenizer, before: list[int]) -> None:
        self._tokenizer = tokenizer
        self._before = before[-CONTEXT:]
        self._waiting: list[int] = []

    def put(self, token: int) -> str:
        """The text that is final after this token. The last few tokens are held back if they may begin a character."""
        self._waiting.append(token)
        for held in range(min(INCOMPLETE, len(self._waiting)) + 1):
            certain = self._waiting[: len(self._waiting) - held]
            text = self._text(certain)
            if held == INCOMPLETE or not text.endswith("\ufffd"):
                self._before = (self._before + certain)[-CONTEXT:]
                self._waiting = self._waiting[len(certain) :]
                return text
        return ""

    def end(self) -> str:
        """The text of the tokens that were held back."""
        return self._text(self._waiting)

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(self._before + ids)[len(self._tokenizer.decode(self._before)) :]


class StopStream:
    """Text that comes in parts, up to the first of the ``stops``. What may begin one is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def put(self, part: str) -> str:
        """The text that is final after this part."""
        text = self._held + part
        found = [text.index(stop) for stop in self._stops if stop in text]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        begun = (length for stop in self._stops for length in range(1, len(stop)) if text.endswith(stop[:length]))
        final = len(text) - max(begun, default=0)
        self._held = text[final:]
        return text[:final]

    def end(self) -> str:
        """The text that was held back."""
        return self._held


def main(argv: list[str]) -> int:
    """Continue a text and print it as it is written. Returns the exit status. Raises UserError for bad input."""
    config = cli.parse(GenerateConfig, argv, __doc__)
    prompt = read_text(config.file, "convert it first") if config.file else config.prompt
    trained = load(config.run, config.store)
    if trained.labels:
        raise UserError(
            f"{trained.place} predicts labels and not the next token, so it continues no text: score it with {typed('evaluate')}"
        )
    if config.chat:
        from pipelines.inference.chatting import chat_ids

        prompt_ids = chat_ids(trained, prompt)
    else:
        prompt_ids = trained.tokenizer.encode(prompt).tolist()
    seed = secrets.randbits(31) if config.seed is None else config.seed
    drawn = f", seed {seed}" if config.temperature else ""
    print(f"{trained.place}: continuing {counted(len(prompt_ids), 'token')}{drawn}", file=sys.stderr)
    safe = printable if sys.stdout.isatty() else str
    stream = TextStream(trained.tokenizer, prompt_ids)
    stops = StopStream(config.stop)
    began = time.monotonic()
    first = 0.0
    count = 0
    status = 0
    try:
        try:
            for token in generate(trained, prompt_ids, config, seed):
                count += 1
                first = first or time.monotonic()
                print(safe(stops.put(stream.put(token))), end="", flush=True)
                if stops.stopped:
                    break
        except KeyboardInterrupt:  # the text so far is what was wanted
            status = cli.INTERRUPTED_STATUS
        last = "" if stops.stopped else stops.put(stream.end())
        print(safe(last + stops.end()), flush=True)
    except BrokenPipeError:
        discard()
        return status
    if not count:
        ended = "stopped before a token was written" if status else "the text ends here: no token was written"
        print(ended, file=sys.stderr)
        return status
    rate = (count - 1) / max(time.monotonic() - first, 1e-9)
    wrote = f", then {rate:.0f} tokens/s" if count > 1 else ""
    print(f"text read in {first - began:.1f} s{wrote}", file=sys.stderr)
    return status


if __name__ == "__main__":
    cli.run(main)
