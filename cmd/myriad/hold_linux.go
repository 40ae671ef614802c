package main

import (
	"os"
	"syscall"
)

// enoughSignals are those at which hold opens no more connections.
var enoughSignals = []os.Signal{syscall.SIGUSR1}
