"""flashd seen from outside, by somebody who wishes it ill: a real daemon, a real redis-server, a lying world."""
