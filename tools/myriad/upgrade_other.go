//go:build !linux

package main

import "os"

// upgradeSignal is nil, because upgrades are possible only on Linux.
var upgradeSignal os.Signal
