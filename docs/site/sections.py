"""Sections of our docstrings, in the words that griffe knows: others become boxes of their own name."""

import re

import griffe

GUARANTEE = re.compile(r"^\*\*Guarantee\.\*\*[ ]*(.*?)(?=\n\n[A-Z][\w ]*:\n|\Z)", re.MULTILINE | re.DOTALL)
BOX = re.compile(r"^Guarantee:\n(.*?)(?=\n\S|\Z)", re.MULTILINE | re.DOTALL)
PART = re.compile(r"\n(?=\s*(?:Bound|Not covered|Proof|Sources?): )")


class Sections(griffe.Extension):
    """Prepares each docstring before griffe reads its sections."""

    def on_instance(self, *, obj, **kwargs):
        if not obj.docstring:
            return
        text = obj.docstring.value
        # The plural is a section, with examples as code.
        text = re.sub(r"^Example:[ ]*$", "Examples:", text, flags=re.MULTILINE)
        if obj.is_class:
            # Of a layer: what a call returns, not the class.
            text = re.sub(r"^Returns:$", "Call returns:", text, flags=re.MULTILINE)
        text = GUARANTEE.sub(boxed, text)
        obj.docstring.value = BOX.sub(lambda match: PART.sub("\n\n", match[0]), text)


def boxed(match):
    """Returns a guarantee that is written as a paragraph as a section."""
    lines = (line.strip() for line in match[1].strip().splitlines())
    return "Guarantee:\n" + "\n".join(f"    {line}".rstrip() for line in lines)
