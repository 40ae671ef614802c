//go:build !linux

package main

import "os"

// upgradeSignal is nil, because only Linux supports upgrades.
var upgradeSignal os.Signal
