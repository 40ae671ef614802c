package main

import (
	"os"
	"os/signal"
	"syscall"
)

// enoughAtSignal gives a channel that is closed at SIGUSR1, by which a program that
// watches the machine tells hold to open no more connections. stop gives the signal back
// and waits for the goroutine that waits for it.
func enoughAtSignal() (enough <-chan struct{}, stop func()) {
	said, done, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		defer close(ended)
		select {
		case <-signals:
			close(said)
		case <-done:
		}
	}()
	return said, func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
