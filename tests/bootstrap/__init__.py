"""The box programs, executed as they travel: unpacked from a rendered `user_data` below a private root."""
