package main

import (
	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tcp"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	serverFlags
	app       appFlags
	heartbeat string
}

// addFlags adds the flags to the command.
func (f *serveFlags) addFlags(cmd *cobra.Command) {
	flags, srv := cmd.Flags(), &f.srv
	f.serverFlags.addFlags(flags, "127.0.0.1:9000")
	f.app.addFlags(cmd)
	f.workers.addFlags(cmd)
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, 1 by default (default: none, this process serves)")
	flags.DurationVar(&srv.Heartbeat.Interval, "heartbeat", 0, "send a heartbeat to peers that have been silent so long (default: none)")
	flags.StringVar(&f.heartbeat, "heartbeat-message", "ping\n", "what a heartbeat is")
	flags.IntVar(&srv.Heartbeat.MaxMissed, "heartbeat-missed", 0, "close a connection that leaves so many unanswered (default 2)")
	f.flagsByField["Server.Processes"], f.flagsByField["Heartbeat.Interval"], f.flagsByField["Heartbeat.MaxMissed"] = "processes", "heartbeat", "heartbeat-missed"
}

// validateAndSetUp is the server that the flags describe.
func (f *serveFlags) validateAndSetUp(cmd *cobra.Command) (*tcp.Server, error) {
	srv := &f.srv
	var err error
	if srv.Handler, err = f.app.newHandler(cmd, srv); err != nil {
		return nil, err
	}
	if err := f.workers.buildPoolConfig(cmd, f.app.shed); err != nil {
		return nil, err
	}
	if srv.Heartbeat.Interval != 0 {
		srv.Heartbeat.Message = []byte(f.heartbeat)
	} else if cmd.Flags().Changed("heartbeat-message") || srv.Heartbeat.MaxMissed != 0 {
		return nil, usagef("--heartbeat-message and --heartbeat-missed are for heartbeats; expected them with --heartbeat")
	}
	return srv, f.validateAndComplete(cmd)
}
