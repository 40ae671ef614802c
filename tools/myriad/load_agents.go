package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/internal/agents"
	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

type distributedLoadFlags struct {
	agents  agentCount
	options agents.Options
	secret  secretFlag
	nats    natsFlags
	cert    string
	key     string
}

// agentCount is the value of --agents. If local is set, the agents are processes on this machine.
type agentCount struct {
	n     int
	local bool
}

func parseAgentCountWithOptionalLocalPrefix(text string) (c agentCount, err error) {
	number, local := strings.CutPrefix(text, "local:")
	n, err := quantity.ParsePositive(number)
	if err != nil || n > load.MaxGenerators {
		return c, quantity.Error(fmt.Sprintf("a number of agents, 1 to %d, or local: and a number", load.MaxGenerators))
	}
	return agentCount{n, local}, nil
}

func (f *distributedLoadFlags) addFlags(flags *pflag.FlagSet) {
	addParsedFlag(flags, &f.agents, parseAgentCountWithOptionalLocalPrefix, "agents", "", "divide the connections among `N` agents that are started with \"myriad agent\" on other machines; local:N starts N processes here (default: no agents)")
	flags.StringVar(&f.options.Listen, "agents-addr", agents.DefaultListen, "listen on this `ADDRESS` for agents, with a NATS server in this process")
	flags.StringVar(&f.cert, "agents-cert", "", "encrypt --agents-addr with TLS: PEM `FILE` with the certificate chain")
	flags.StringVar(&f.key, "agents-key", "", "`FILE` with the private key of --agents-cert")
	f.nats.addFlags(flags, "", "connect to the agents through this NATS server: `URL`s such as nats://user:password@host:4222 or tls://host, separated by commas, or @FILE with them (default: a server in this process)")
	addParsedFlag(flags, &f.options.JoinTimeout, quantity.ParsePositiveDurationOrSeconds, "agents-wait", "", "wait at most this `TIME` for the agents (default 1m)")
	f.secret.addFlag(flags, "agents-secret", agents.SecretVariable, "that agents need to connect, or the token of the NATS server")
}

// natsFlagNames lists the flags about the NATS server. They are invalid with local agents.
var natsFlagNames = []string{"agents-addr", "agents-cert", "agents-key", "nats", "nats-creds", "nats-ca", "agents-secret"}

func (f *distributedLoadFlags) validateAndSetOptions(toDivide *load.Config, isFlagSet func(string) bool) (err error) {
	if f.agents.n == 0 {
		for _, name := range append([]string{"agents-wait"}, natsFlagNames...) {
			if isFlagSet(name) {
				return usagef("--%s is given without --agents; expected both", name)
			}
		}
		return nil
	}
	if f.agents.local {
		for _, name := range natsFlagNames {
			if isFlagSet(name) {
				return usagef("--%s is given with --agents local:%d, which starts processes on this machine; expected --agents %d", name, f.agents.n, f.agents.n)
			}
		}
	}
	switch {
	case isFlagSet("nats") && isFlagSet("agents-addr"):
		return usagef("--nats and --agents-addr are both given; expected one of the two")
	case isFlagSet("nats") && f.cert+f.key != "":
		return usagef("--agents-cert or --agents-key is given with --nats; expected --agents-addr, because they are for the server in this process")
	case (f.cert == "") != (f.key == ""):
		return usagef("only one of --agents-cert and --agents-key is given; expected both")
	case !isFlagSet("nats"):
		if err := validateHostPort("agents-addr", f.options.Listen); err != nil {
			return err
		}
	}
	if f.options.NATS, err = f.nats.natsServerForAgents(&f.secret); err != nil {
		return err
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return usagef("--agents-cert: %w", err)
		}
		f.options.ListenTLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if err := f.options.RequireCredentialsUnlessLoopback(); err != nil {
		return usageError{err}
	}
	whole := *toDivide
	if f.agents.local {
		whole.Sources = nil // each agent uses all of them
	}
	if _, err := whole.Divide(slices.Repeat([]float64{1}, f.agents.n)...); err != nil {
		return usageError{err}
	}
	return nil
}

func (f *loadFlags) runLoadHereOrOnAgents(ctx context.Context, rep *runReporter) (*load.Result, error) {
	if f.agents.agents.n == 0 {
		f.raiseGOMAXPROCSIfTLS()
		return load.Run(ctx, f.cfg)
	}
	o, cfg := f.agents.options, f.cfg
	o.Agents, o.Logf = f.agents.agents.n, rep.printTextUnlessJSON
	switch {
	case f.results.quiet:
		o.Logf = nil
	case !rep.textResult:
		o.Logf = func(format string, args ...any) { fmt.Fprintf(rep.stderr, format+"\n", args...) }
	}
	if f.agents.agents.local {
		o.Token, o.Listen = rand.Text(), "127.0.0.1:0" // prevents other users of the machine from joining
		o.StartLocal = func(url string) (func(), error) { return f.startLocalAgentProcesses(url, o.Token) }
		cfg.Sources = nil
	}
	return agents.RunOnAgents(ctx, o, cfg)
}

// startLocalAgentProcesses starts agents on this machine. The function awaitExitOrKill waits for their exit, and kills
// those that still run after localAgentStopTimeout.
func (f *loadFlags) startLocalAgentProcesses(natsURL, secret string) (awaitExitOrKill func(), err error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"agent", "--quiet", "--once", "--nats", natsURL}
	for _, a := range f.cfg.Sources {
		args = append(args, "--src", a.String())
	}
	for _, target := range append([]string{f.cfg.Target}, f.cfg.Also...) {
		if strings.HasPrefix(target, "unix:") {
			args = append(args, "--allow", target, "--allow", "0.0.0.0/0", "--allow", "::/0")
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	awaitExitOrKill = func() {
		late := time.AfterFunc(localAgentStopTimeout, cancel) // normally they end by themselves
		running.Wait()
		late.Stop()
		cancel()
	}
	for i := range f.agents.agents.n {
		child := exec.CommandContext(ctx, executable, append(args, "--name", fmt.Sprintf("local-%d", i+1))...)
		child.Env = append(os.Environ(), agents.SecretVariable+"="+secret)
		child.Stderr = os.Stderr
		if err := child.Start(); err != nil {
			cancel()
			running.Wait()
			return nil, err
		}
		running.Go(func() { _ = child.Wait() }) // its result, or the lack of one, is reported elsewhere
	}
	return awaitExitOrKill, nil
}

const localAgentStopTimeout = 10 * time.Second
