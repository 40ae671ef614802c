package main

import (
	"os"
	"syscall"
)

// upgradeSignal is the signal by which a user requests an upgrade.
var upgradeSignal os.Signal = syscall.SIGUSR2
