//go:build !linux

package main

// enoughAtSignal has no signal on this system.
func enoughAtSignal() (enough <-chan struct{}, stop func()) { return nil, func() {} }
