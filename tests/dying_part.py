"""A part whose process dies while the files of its run change."""

DOOMED = """
import os, signal, sys
from dataclasses import dataclass
from fedstrata.methods.selectors.random import Random

@dataclass(frozen=True)
class Doomed(Random):
    "Whose process dies after so many files of its run were opened, renamed or removed."

left = int(os.environ.get("DIES_AFTER", 0))

def count(event, args):
    global left
    if event in ("open", "os.rename", "os.remove") and "/cut/" in str(args[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

if left:
    sys.addaudithook(count)
"""
