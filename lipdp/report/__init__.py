"""Run folders, and the report that a person reads."""

from lipdp.report.folder import RunFolder as RunFolder
from lipdp.report.folder import claim as claim
from lipdp.report.folder import clear as clear
from lipdp.report.folder import read as read
from lipdp.report.folder import write as write
from lipdp.report.html import to_html as to_html
from lipdp.report.markdown import to_markdown as to_markdown
from lipdp.report.render import render as render
from lipdp.report.tightness import plot_tightness as plot_tightness
