"""The outside world in miniature: a cloud, a Hub and boxes that speak the real protocols on loopback."""
