package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
)

// reloadAtHangup has the certificate read again at each SIGHUP, until it is ended. With
// worker processes the first one tells of it; they, too, read it when the signal was for
// all of the group, and otherwise when a handshake finds that it has changed.
func (f *serverTLS) reloadAtHangup(cmd *cobra.Command) (end func()) {
	if f.pair == nil {
		return func() {}
	}
	hangups, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(hangups, syscall.SIGHUP)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case sig := <-hangups:
				f.reload(cmd, sig)
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		close(done)
		<-ended
	}
}

func (f *serverTLS) reload(cmd *cobra.Command, sig os.Signal) {
	expires, err := f.pair.Again()
	_, worker := myriad.WorkerProcess()
	switch {
	case worker: // the first process has said it
	case err != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: the certificate can't be reloaded, the old one stays in use: %v\n", sig, err)
	default:
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %v: certificate %s reloaded, it expires %s\n", sig, f.cert, expires.Format(time.RFC3339))
	}
}
