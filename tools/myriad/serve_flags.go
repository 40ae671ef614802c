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

// add adds the flags to the command.
func (f *serveFlags) add(cmd *cobra.Command) {
	flags, srv := cmd.Flags(), &f.srv
	f.serverFlags.add(flags, "127.0.0.1:9000")
	f.app.add(cmd)
	f.workers.add(cmd)
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, 1 by default (default: none, this process serves)")
	flags.DurationVar(&srv.Heartbeat.Interval, "heartbeat", 0, "send a heartbeat to peers that have been silent so long (default: none)")
	flags.StringVar(&f.heartbeat, "heartbeat-message", "ping\n", "what a heartbeat is")
	flags.IntVar(&srv.Heartbeat.MaxMissed, "heartbeat-missed", 0, "close a connection that leaves so many unanswered (default 2)")
	f.fields["Server.Processes"], f.fields["Heartbeat.Interval"], f.fields["Heartbeat.MaxMissed"] = "processes", "heartbeat", "heartbeat-missed"
}

// server is the server that the flags describe.
func (f *serveFlags) server(cmd *cobra.Command) (*tcp.Server, error) {
	srv := &f.srv
	var err error
	if srv.Handler, err = f.app.handler(cmd, srv); err != nil {
		return nil, err
	}
	if err := f.workers.check(cmd, f.app.shed); err != nil {
		return nil, err
	}
	if srv.Heartbeat.Interval != 0 {
		srv.Heartbeat.Message = []byte(f.heartbeat)
	} else if cmd.Flags().Changed("heartbeat-message") || srv.Heartbeat.MaxMissed != 0 {
		return nil, usagef("--heartbeat-message and --heartbeat-missed are for heartbeats; expected them with --heartbeat")
	}
	return srv, f.check(cmd)
}
