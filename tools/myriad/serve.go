package main

import (
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tcp"
)

type serveFlags struct {
	serverFlags
	app       appFlags
	heartbeat string
}

func (f *serveFlags) addFlags(cmd *cobra.Command) {
	flags, srv := cmd.Flags(), &f.srv
	f.serverFlags.addFlags(flags, "127.0.0.1:9000")
	f.app.addFlags(cmd)
	f.workers.addFlags(cmd)
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, or 1 without --loops (default 0: this process serves)")
	flags.DurationVar(&srv.Heartbeat.Interval, "heartbeat", 0, "send a heartbeat after this time without input (default off)")
	flags.StringVar(&f.heartbeat, "heartbeat-message", "ping\n", "content of a heartbeat")
	flags.IntVar(&srv.Heartbeat.MaxMissed, "heartbeat-missed", 0, "unanswered heartbeats after which a connection is closed (default 2)")
	f.flagsByField["Server.Processes"], f.flagsByField["Heartbeat.Interval"], f.flagsByField["Heartbeat.MaxMissed"] = "processes", "heartbeat", "heartbeat-missed"
}

func (f *serveFlags) validateAndSetUp(cmd *cobra.Command) (*tcp.Server, error) {
	srv := &f.srv
	var err error
	if srv.Handler, err = f.app.validateAndNewHandler(cmd, srv); err != nil {
		return nil, err
	}
	if err := f.workers.validateAndBuildPoolConfig(cmd, f.app.shed); err != nil {
		return nil, err
	}
	if srv.Heartbeat.Interval != 0 {
		srv.Heartbeat.Message = []byte(f.heartbeat)
	} else if cmd.Flags().Changed("heartbeat-message") || srv.Heartbeat.MaxMissed != 0 {
		return nil, usagef("--heartbeat-message or --heartbeat-missed is given without --heartbeat; expected --heartbeat, too")
	}
	return srv, f.validateAndConfigure(cmd)
}

func newServeCommand() *cobra.Command {
	f := &serveFlags{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve an example application under an I/O model",
		Long: "Serve an example application under an I/O model.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads\n" +
			"the certificate of --tls-cert; without TLS it also drains, because a terminal sends it\n" +
			"when it closes, unless the signal is ignored (nohup). SIGUSR2 starts the current\n" +
			"executable with the same arguments as a new process, which takes over the connections\n" +
			"(Linux).\n\n" +
			"Applications:\n" + formatAppList(),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveApp(cmd) },
	}
	f.addFlags(cmd)
	return cmd
}

// raiseGOMAXPROCSUnlessSet raises GOMAXPROCS to the number of event loops plus one. If withWorkers is true, it instead
// raises GOMAXPROCS to the number of event loops plus the number of processors. It does nothing if loops is 0 or if the
// user has set GOMAXPROCS.
func raiseGOMAXPROCSUnlessSet(loops int, withWorkers bool) {
	// With less, the Go scheduler takes the processor from a loop that waits briefly: on one connection, this raised
	// the time per message from 28 to 37 µs.
	need := loops + 1
	if withWorkers {
		// Handlers that compute can then use all CPUs.
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
