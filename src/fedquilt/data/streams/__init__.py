"""Data that change from round to round: tasks one after the other, and when each is on."""

from fedquilt.data.streams.streams import Stream as Stream
