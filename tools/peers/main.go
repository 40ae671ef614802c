// Command peers serves with other Go servers, and with "peers offer" submits jobs to other Go pools, to
// compare Myriad with them. README.md describes each and why it is included.
//
// It exits with 0 on success, 1 on failure, and 2 on wrong usage, with a message on standard error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// usageError is an error in the command line: exit code 2.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// run executes the command line until ctx ends and returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	command := serve
	if len(args) > 0 && args[0] == "offer" {
		command, args = offerJobs, args[1:]
	}
	err := command(ctx, args, out)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(errOut, "peers: %v\n", err)
	if _, wrong := errors.AsType[usageError](err); wrong {
		return 2
	}
	return 1
}

// settings are the values of the flags.
type settings struct {
	addr, server, app string
	cert, key         string // files for TLS; empty without
	files             string // directory for the app web
	heartbeat         time.Duration
	connections       int
}

func parseFlags(args []string, help io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // run prints errors
	flags.StringVar(&s.addr, "addr", "127.0.0.1:9000", "`HOST:PORT` to listen on; port 0 selects a free one")
	flags.StringVar(&s.server, "server", "netpoll", "`SERVER` to use, from the list below")
	flags.StringVar(&s.app, "app", "echo", "`APP` to serve, from those of the server")
	flags.StringVar(&s.cert, "tls-cert", "", "encrypt with TLS: `FILE` with the certificate in PEM form; only nbio's echo and fasthttp's web")
	flags.StringVar(&s.key, "tls-key", "", "`FILE` with the private key of --tls-cert")
	flags.StringVar(&s.files, "files", ".", "`DIR` with the files of the app web")
	flags.DurationVar(&s.heartbeat, "heartbeat", time.Second, "send a heartbeat after `D`; the app sink")
	flags.IntVar(&s.connections, "connections", 1000, "expect `N` connections; the app sink, with a thread for each descriptor table")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(help)
			fmt.Fprint(help, "Serve with other Go servers. (\"peers offer\" submits jobs to other pools.)\n\n")
			flags.PrintDefaults()
			fmt.Fprintf(help, "\nServers, and their apps:\n%s", describeServers())
			return s, err
		}
		return s, usagef("%w; \"peers --help\" lists the flags", err)
	}
	_, _, err := net.SplitHostPort(s.addr)
	switch {
	case (s.cert == "") != (s.key == ""):
		return s, usagef("only one of --tls-cert and --tls-key is given; expected both")
	case s.cert != "" && s.server+s.app != "nbioecho" && s.app != "web":
		return s, usagef("--tls-cert is given with --server %s --app %s; expected nbio and echo, or fasthttp and web", s.server, s.app)
	case flags.NArg() > 0:
		return s, usagef("unexpected argument %q; expected flags only", flags.Arg(0))
	case err != nil:
		return s, usagef("--addr is %q; expected HOST:PORT", s.addr)
	}
	return s, nil
}

// serve serves according to args until ctx ends.
func serve(ctx context.Context, args []string, out io.Writer) error {
	s, err := parseFlags(args, out)
	if err != nil {
		return err
	}
	start, err := findServer(s.server, s.app)
	if err != nil {
		return err
	}
	switch {
	case s.app == "sink":
		start = serveHeartbeatsInC(s)
	case s.app == "web":
		start, err = serveFastHTTPWeb(s)
	case s.cert != "":
		start, err = serveNbioTLS(s.cert, s.key)
	}
	if err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.addr)
	if err != nil {
		return err
	}
	return start(ctx, ln, func() {
		fmt.Fprintf(out, "peers: serving %s with %s on %s\n", s.app, s.server, ln.Addr())
	})
}
