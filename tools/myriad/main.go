// Command myriad serves, loads and compares TCP servers with many connections.
//
// It exits with 0 on success, 1 on failure and 2 on wrong use: an invalid flag or argument, or a file that
// cannot be read or written. With 2, a line on standard error describes the error and the expected input.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tools/internal/version"
)

func main() {
	os.Exit(runCommandLine(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func runCommandLine(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) (exitCode int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // restores the handling of signals
	root := newRootCommandWithNamedSubcommand(args...)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	text := strings.TrimPrefix(err.Error(), "myriad: ")
	_, wrong := errors.AsType[usageError](err)
	fmt.Fprintf(errOut, "myriad: %s\n", text)
	if wrong {
		return 2
	}
	return 1
}

// usageError reports that the user has used the command wrongly. It makes the program exit with the code 2.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

var commandConstructors = map[string]func() *cobra.Command{
	"serve": newServeCommand, "hub": newHubCommand, "load": newLoadCommand, "hold": newHoldCommand, "agent": newAgentCommand, "report": newReportCommand, "doctor": newDoctorCommand,
	"article": newArticleCommand, "plan": newPlanCommand, "bench": newBenchCommand, "plain": newPlainCommand, "park": newParkGoroutinesCommand, "offer": newPoolLoadCommand, "version": newVersionCommand,
}

// newRootCommandWithNamedSubcommand returns the root command. If args[0] is the name of a subcommand, the root command
// has only this subcommand. Otherwise, it has all subcommands.
func newRootCommandWithNamedSubcommand(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:               "myriad",
		Short:             "Serve, load and compare TCP servers with many connections",
		Version:           versionAndPlatform(),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRun:  func(cmd *cobra.Command, _ []string) { cancelOnSignalUnlessServer(cmd) },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	root.SetFlagErrorFunc(toUsageErrorWithExpectation)
	// A single subcommand makes the program start faster.
	only := ""
	if len(args) > 0 && commandConstructors[args[0]] != nil {
		only = args[0]
	}
	for name, add := range commandConstructors {
		if only == "" || name == only {
			cmd := add()
			setUpHelpRecursively(cmd)
			root.AddCommand(cmd)
		}
	}
	root.InitDefaultHelpCmd()
	setUpArgsValidationRecursively(root)
	return root
}

// duplicateSignalWindow is the time after a signal in which a second signal is ignored.
const duplicateSignalWindow = 200 * time.Millisecond // timeout(1) sends two signals

// cancelOnSignalUnlessServer makes SIGINT and SIGTERM cancel the context of cmd. Further signals are ignored for
// duplicateSignalWindow. After that time, another signal ends the process. The commands serve and hub handle signals
// themselves, so cancelOnSignalUnlessServer does nothing for them.
func cancelOnSignalUnlessServer(cmd *cobra.Command) {
	if cmd.Name() == "serve" || cmd.Name() == "hub" {
		return
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(duplicateSignalWindow, stop) })
	cmd.SetContext(ctx)
}

func setUpArgsValidationRecursively(cmd *cobra.Command) {
	args, group := cmd.Args, cmd.Args == nil && cmd.HasSubCommands()
	if args == nil {
		args = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if group && len(given) > 0 {
			return usagef("unknown command %q; expected one of %s", given[0], strings.Join(availableSubcommands(cmd), ", "))
		}
		err := args(cmd, given)
		switch {
		case err == nil:
			return nil
		case strings.HasPrefix(err.Error(), "unknown command"): // the error of cobra.NoArgs
			return usagef("unexpected argument %q; expected %s", given[0], cmd.UseLine())
		case len(given) == 0:
			return usagef("missing argument; expected %s", cmd.UseLine())
		}
		return usagef("%d arguments are given; expected %s", len(given), cmd.UseLine())
	}
	for _, sub := range cmd.Commands() {
		if sub.Name() == "help" {
			sub.Args = requireKnownHelpTopic
			continue
		}
		setUpArgsValidationRecursively(sub)
	}
}

func requireKnownHelpTopic(cmd *cobra.Command, commandPath []string) error {
	if found, rest, err := cmd.Root().Find(commandPath); err == nil && (found != cmd.Root() || len(rest) == 0) {
		return nil
	}
	return usagef("unknown command %q; expected one of %s", commandPath[0], strings.Join(availableSubcommands(cmd.Root()), ", "))
}

func availableSubcommands(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of Myriad (or the commit, if the build has no version), the Go version and the platform",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", cmd.Root().DisplayName(), versionAndPlatform())
			return err
		},
	}
}

func versionAndPlatform() string {
	return fmt.Sprintf("%s %s %s/%s", cmp.Or(version.MyriadVersion(), "(devel)"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
