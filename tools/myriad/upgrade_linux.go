package main

import (
	"os"
	"syscall"
)

// upgradeSignal requests an upgrade.
var upgradeSignal os.Signal = syscall.SIGUSR2
