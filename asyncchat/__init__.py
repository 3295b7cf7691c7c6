"""asyncchat."""
from asyncchat._version import __version__
