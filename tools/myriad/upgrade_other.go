//go:build !linux

package main

import "os"

// upgradeSignal is nil: upgrades need Linux.
var upgradeSignal os.Signal
