//go:build !linux

package main

import "os"

// upgradeSignal is nil because upgrades need Linux.
var upgradeSignal os.Signal
