"""The command line in a test."""

from lipdp.cli import main


def refusal(capsys, *words) -> str:
    """What a command says that is refused: one line on standard error, nothing else."""
    capsys.readouterr()
    assert main(list(map(str, words))) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err
