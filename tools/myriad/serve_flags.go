package main

import (
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
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, by default 1 (default 0: this process serves)")
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
		return nil, usagef("--heartbeat-message and --heartbeat-missed need --heartbeat; expected it, too")
	}
	return srv, f.validateAndComplete(cmd)
}
