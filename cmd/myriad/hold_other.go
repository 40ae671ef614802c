//go:build !linux

package main

import "os"

var enoughSignals []os.Signal
