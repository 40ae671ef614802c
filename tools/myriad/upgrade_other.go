//go:build !linux

package main

import "os"

// upgradeSignal is none: upgrades are for Linux.
var upgradeSignal os.Signal
