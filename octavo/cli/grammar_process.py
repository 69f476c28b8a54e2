"""Where grammars are tried: ``python -m octavo.cli.grammar_process``, started by ``serve``.

Reads the model's configuration as one line of JSON from standard input, then grammars; leaves when
standard input ends.
"""

from __future__ import annotations

import os
import sys

import msgspec
from llguidance import LLTokenizer

from octavo import assemble
from octavo.core.config import ModelConfig
from octavo.grammar import trial
from octavo.grammar.vocabulary import make_vocabulary

_NICENESS = 5


def main() -> None:
    """Answers until the parent is gone. Whatever has work to do goes first."""
    os.nice(_NICENESS)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ModelConfig)

    def vocabulary() -> LLTokenizer:
        front = assemble.read_front(config)
        spec = front.checkpoint.spec
        return make_vocabulary(
            front.tokenizer,
            vocab_size=spec.vocab_size,
            eos_token_ids=front.checkpoint.eos_token_ids,
        )

    trial.serve(vocabulary, sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
