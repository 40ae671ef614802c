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

// raiseGOMAXPROCSUnlessSet raises GOMAXPROCS, unless the user has set it, so that Go has a spare processor while loops
// wait briefly. Without a spare one, the scheduler takes a loop's processor away and must return it. On one connection
// this took a quarter of the server's work: 37 µs per message instead of 28.
//
// With 56 loops on two CPUs, the spare processor reduced the processor time for opening 200,000 connections from 16 s
// to 9.5 s, because fewer loops were woken at a time.
//
// If a worker pool may call the handlers, there is one more processor per CPU. Otherwise computing handlers would not
// use all CPUs: with two CPUs and one loop, they got only 1.4.
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
