"""The service: offset managers over HTTP, with health, metrics and event streams."""

from __future__ import annotations
