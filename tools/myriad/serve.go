package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"
)

func newServeCommand() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve an example application under an I/O model",
		Long: "Serve an example application under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads\n" +
			"the certificate of --tls-cert; without TLS it drains, too, unless it is ignored (nohup):\n" +
			"a terminal that is closed sends it. SIGUSR2 starts the current executable with the same\n" +
			"arguments as a new process, which takes over the connections (Linux).\n\n" +
			"Applications:\n" + formatAppList(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveApp(cmd) },
	}
	f.addFlags(cmd)
	return cmd
}

// raiseGOMAXPROCSUnlessSet raises GOMAXPROCS to the number of loops plus a reserve. If the user has set GOMAXPROCS, it
// does nothing.
//
// The usual reserve is one processor. Without a reserve, the Go scheduler takes the processor of a loop away while the
// loop waits briefly, and must return it. On one connection, this raised the time per message from 28 to 37 µs. With 56
// loops on two CPUs, the reserve also reduced the processor time for opening 200,000 connections from 16 s to 9.5 s.
//
// If a worker pool may call the handlers, the reserve is one processor per CPU. With a smaller reserve, computing
// handlers would not use all CPUs: with one loop on two CPUs, they used only 1.4.
func raiseGOMAXPROCSUnlessSet(loops int, withWorkers bool) {
	need := loops + 1
	if withWorkers {
		need = loops + runtime.NumCPU()
	}
	if os.Getenv("GOMAXPROCS") == "" && loops > 0 && need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

func (f *serveFlags) serveApp(cmd *cobra.Command) error {
	if _, err := f.validateAndSetUp(cmd); err != nil {
		return err
	}
	return f.serveUntilSignal(cmd, f.app.name)
}
