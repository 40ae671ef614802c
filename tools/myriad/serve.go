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
		Short: "Serve one of the example applications under an I/O model",
		Long: "Serve one of the example applications under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads\n" +
			"the certificate of --tls-cert; without TLS it drains, too, unless it is ignored (nohup):\n" +
			"a terminal that is closed sends it. SIGUSR2 has a new process, of the executable as it is by\n" +
			"then and with the same arguments, take over the connections (Linux).\n\n" +
			"Applications:\n" + formatAppList(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveApp(cmd) },
	}
	f.addFlags(cmd)
	return cmd
}

// raiseGOMAXPROCS sees to it that Go has enough processors beside those that
// loops hold, also while they wait for a moment. With none to spare the scheduler
// takes the processor of such a loop and has to give it back: at one connection
// that was a quarter of the server's work, 37 µs a message against 28, in
// interleaved runs. With 56 loops on two CPUs, opening 200,000 connections took both
// sides 9.5 s of processor time instead of 16 when the generator's had enough, too, and
// woke fewer loops at a time. Where workers may call the handlers, each CPU is to have
// one for them: with two for two CPUs and a loop, handlers that compute got 1.4 of the
// CPUs.
func raiseGOMAXPROCS(loops int, workers bool) {
	need := loops + 1
	if workers {
		need = loops + runtime.NumCPU()
	}
	if os.Getenv("GOMAXPROCS") == "" && loops > 0 && need > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(need)
	}
}

// serveApp runs the server until a signal has ended it.
func (f *serveFlags) serveApp(cmd *cobra.Command) error {
	if _, err := f.validateAndSetUp(cmd); err != nil {
		return err
	}
	return f.runServer(cmd, f.app.name)
}
