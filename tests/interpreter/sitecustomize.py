"""For every Python that the tests start: rare garbage collection, and none at exit, make imports a third faster."""

import atexit
import gc

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)
