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

// raiseGOMAXPROCS sets GOMAXPROCS, unless the user has set it, so that Go has processors in addition to those
// of loops that wait briefly. Without a spare one, the scheduler takes a loop's processor and must return it.
// On one connection this took a quarter of the server's work: 37 µs per message instead of 28, in interleaved
// runs.
//
// With 56 loops on two CPUs, opening 200,000 connections took both sides 9.5 s of processor time instead of 16
// s, if the generator also had enough processors. Fewer loops were woken at a time.
//
// If withWorkers may call the handlers, there is one more processor per CPU. With two processors for two CPUs and a
// loop, computing handlers got only 1.4 CPUs.
func raiseGOMAXPROCS(loops int, withWorkers bool) {
	need := loops + 1
	if withWorkers {
		need = loops + runtime.NumCPU()
	}
	if os.Getenv("GOMAXPROCS") == "" && loops > 0 && need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

// serveApp runs the server until a signal ends it.
func (f *serveFlags) serveApp(cmd *cobra.Command) error {
	if _, err := f.validateAndSetUp(cmd); err != nil {
		return err
	}
	return f.serveUntilSignal(cmd, f.app.name)
}
