package main

import (
	"os"
	"syscall"
)

var upgradeSignal os.Signal = syscall.SIGUSR2
