package main

import (
	"os"
	"syscall"
)

// upgradeSignal is the signal that requests an upgrade.
var upgradeSignal os.Signal = syscall.SIGUSR2
