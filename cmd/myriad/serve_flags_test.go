package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
)

// FuzzServeFlags gives serve any flags: they describe a server, or they are an error
// that says what was expected.
func FuzzServeFlags(f *testing.F) {
	for _, seed := range []string{
		"--max-conns 5 --idle-timeout never --deny 10.0.0.0/8", "--heartbeat 1s --heartbeat-message x --heartbeat-missed 3",
		"--allow ::1 --trusted-proxy 192.0.2.0/24 --slow-consumer drop", "--idle-timeout -1s", "--addr systemd:web --network unix",
		"--app wait --wait 1ms", "--tls-client-ca x", "--memory-limit 75% --gogc 200", "--deny 1.2.3.4/33", "--loops x",
		"--workers 2-1000 --workers-queue -1 --workers-target 1ms", "--workers adaptive --app work --work-cpu 1ms --work-bytes 5", "--workers 8-",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		for _, a := range args {
			if strings.Contains(a, "help") || strings.Contains(a, "-h") || strings.Contains(a, "tls-") || strings.Contains(a, "version") {
				return // of a file, or not what serve does
			}
		}
		flags := &serveFlags{}
		var srv *myriad.Server
		cmd := &cobra.Command{Use: "serve", SilenceErrors: true, SilenceUsage: true, Args: cobra.ArbitraryArgs,
			RunE: func(cmd *cobra.Command, _ []string) (err error) {
				srv, err = flags.server(cmd)
				return err
			}}
		cmd.SetFlagErrorFunc(flagError)
		flags.add(cmd)
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		switch err := cmd.Execute(); {
		case err == nil && srv == nil:
			t.Errorf("%q: neither a server nor an error", line)
		case err != nil:
			if _, ok := errors.AsType[usageError](err); !ok || !strings.Contains(err.Error(), "expected") {
				t.Errorf("%q: the error %q, which is a %T; want a usageError that says what was expected", line, err, err)
			}
		}
	})
}
