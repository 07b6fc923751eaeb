"""The values everything speaks in. No I/O, no clock, no thread, no torch."""
