package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/internal/agents"
	"github.com/myriad-go/myriad/tools/internal/quantity"
	"github.com/myriad-go/myriad/tools/load"
)

const agentExamples = `  MYRIAD_AGENTS_SECRET=… myriad load --agents 2 --agents-addr :4222 -c 1M 10.0.0.7:9000    # on one machine
  MYRIAD_AGENTS_SECRET=… myriad agent --nats nats://10.0.0.1:4222 --allow 10.0.0.0/24        # on each of two`

type agentFlags struct {
	agent  agents.Agent
	nats   natsFlags
	secret secretFlag
	quiet  bool
}

func newAgentCommand() *cobra.Command {
	var f agentFlags
	cmd := &cobra.Command{
		Use:   "agent [flags]",
		Short: "Generate load for \"myriad load --agents\" on another machine",
		Long: `Generate load for "myriad load --agents" on another machine.

Connects to the NATS server of the coordinator, or to one of your own, and waits for runs, one after
the other. The doctor determines how many connections this machine can carry; the load is divided
accordingly. The coordinator needs the same version of Myriad and, at its own server, the same secret.
A server on another machine must require credentials, because all of its clients can make this machine
load any target that --allow permits; without TLS, credentials are sent in clear text.

A run ends when the coordinator ends it or sends nothing for 5 s. SIGINT or SIGTERM ends the run, reports
the result to the coordinator and ends the agent; a second one ends it at once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveAgent(cmd) },
	}
	var g flagGroups
	g.addFlagGroup("Coordinator", "", func(flags *pflag.FlagSet) {
		f.nats.addFlags(flags, agents.DefaultURL, "connect to the coordinator at this NATS server: `URL`s such as nats://user:password@host:4222 or tls://host, separated by commas, or @FILE with them")
		f.secret.addFlag(flags, "secret", agents.SecretVariable, "of the coordinator, or the token of the NATS server")
		flags.StringVar(&f.agent.Name, "name", "", "`NAME` of this agent (default: the host name)")
		flags.BoolVar(&f.agent.Once, "once", false, "exit after one run")
	})
	g.addFlagGroup("Work", "", func(flags *pflag.FlagSet) {
		flags.Var(&parsedListFlag[agents.AllowedTarget]{&f.agent.Allow, f.parseAllowedTarget}, "allow", "load only this `ADDRESS`, network such as 10.0.0.0/8, or unix:PATH (repeatable; default: every address, and no unix socket)")
		addParsedFlag(flags, &f.agent.MaxConnections, quantity.ParsePositive, "max-connections", "", "open at most `N` connections in a run (default: the limit that the doctor finds)")
		flags.Var(&f, "src", "connect from this local `ADDRESS`, range A-B or network A/BITS (repeatable; default: chosen automatically)")
		flags.StringVar(&f.agent.EventDir, "keep", "", "write the events of each run to a file of this `DIRECTORY`, as \"myriad load --out\" does")
		flags.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors")
	})
	g.addFlagsAndGroupedHelp(cmd)
	return cmd
}

// Set implements pflag.Value for the flag --src. It adds the local addresses in sourceRange to the agent's Sources.
func (f *agentFlags) Set(sourceRange string) error {
	more, err := load.ExpandSourceRange(sourceRange, load.MaxSources-len(f.agent.Sources))
	if err != nil {
		return err
	}
	f.agent.Sources = append(f.agent.Sources, more...)
	return nil
}

func (f *agentFlags) String() string { return "" }
func (f *agentFlags) Type() string   { return "value" }

func (f *agentFlags) parseAllowedTarget(text string) ([]agents.AllowedTarget, error) {
	if len(f.agent.Allow) == agents.MaxAllowed {
		return nil, quantity.Error(fmt.Sprintf("at most %d targets", agents.MaxAllowed))
	}
	one, err := agents.ParseAllowedNetworkOrPath(text)
	return []agents.AllowedTarget{one}, err
}

func (f *agentFlags) serveAgent(cmd *cobra.Command) (err error) {
	if f.agent.NATS, err = f.nats.natsServerForAgents(&f.secret); err != nil {
		return err
	}
	if err := f.agent.RequireCredentialsUnlessLoopback(); err != nil {
		return usagef("--nats: %w", err)
	}
	if f.agent.EventDir != "" {
		if at, err := os.Stat(f.agent.EventDir); err != nil || !at.IsDir() {
			return usagef("--keep is %q; expected an existing directory", f.agent.EventDir)
		}
	}
	var lock sync.Mutex
	f.agent.Logf = func(format string, args ...any) {
		lock.Lock()
		defer lock.Unlock()
		if !f.quiet {
			fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
		}
	}
	f.agent.Observe = func(e load.Event) {
		if e.Plan != nil {
			raiseGOMAXPROCSUnlessSet(e.Plan.Loops, false)
		}
	}
	return f.agent.Serve(cmd.Context())
}
