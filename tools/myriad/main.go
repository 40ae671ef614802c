// Command myriad serves, loads and compares TCP servers with many connections.
//
// It exits with 0 when it worked, 1 when it failed, and 2 when it was called
// wrongly: with a flag or an argument that can't be, or one that names a file that
// can't be read or written. Then a line on standard error says what was wrong and
// what was expected.
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

// runCommandLine runs a command line and returns the exit code.
func runCommandLine(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which gives signals back
	root := newRootCommand(args...)
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

// usageError is an error in how the command was called: exit code 2. Its text
// is "<what was wrong>; <what was expected>".
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// usagef makes a usageError.
func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// commandConstructors makes each command by its name.
var commandConstructors = map[string]func() *cobra.Command{
	"serve": newServeCommand, "hub": newHubCommand, "load": newLoadCommand, "hold": newHoldCommand, "agent": newAgentCommand, "report": newReportCommand, "doctor": newDoctorCommand,
	"plan": newPlanCommand, "bench": newBenchCommand, "plain": newPlainCommand, "park": newParkGoroutinesCommand, "offer": newJobLoadCommand, "version": newVersionCommand,
}

// newRootCommand is the command with the one below it that the arguments begin with, or with all
// where they don't begin with one: hundreds of flags that nobody asks for take a tenth of the start.
func newRootCommand(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:               "myriad",
		Short:             "Serve, load and compare TCP servers with many connections",
		Version:           buildDescription(),
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:      true,
		SilenceErrors:     true,
		PersistentPreRun:  func(cmd *cobra.Command, _ []string) { cancelOnSignal(cmd) },
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	root.SetFlagErrorFunc(explainFlagError)
	only := ""
	if len(args) > 0 && commandConstructors[args[0]] != nil {
		only = args[0]
	}
	for name, add := range commandConstructors {
		if only == "" || name == only {
			root.AddCommand(add())
		}
	}
	root.InitDefaultHelpCmd()
	reportUsageErrors(root)
	return root
}

// duplicateSignalWindow is how long a second signal counts as the first: timeout(1) sends one to the
// command and one to its group.
const duplicateSignalWindow = 200 * time.Millisecond

// cancelOnSignal ends the command's context at SIGINT or SIGTERM. A second
// signal ends the process. Servers tell signals apart, so they handle them themselves.
func cancelOnSignal(cmd *cobra.Command) {
	if cmd.Name() == "serve" || cmd.Name() == "hub" {
		return
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() { time.AfterFunc(duplicateSignalWindow, stop) })
	cmd.SetContext(ctx)
}

// reportUsageErrors makes every wrong use of a command and of those below it a usageError.
func reportUsageErrors(cmd *cobra.Command) {
	args, group := cmd.Args, cmd.Args == nil && cmd.HasSubCommands()
	if args == nil {
		args = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, given []string) error {
		if group && len(given) > 0 {
			return usagef("unknown command %q; expected one of %s", given[0], strings.Join(availableSubcommands(cmd), ", "))
		}
		err := args(cmd, given)
		if err == nil {
			err = cmd.ValidateRequiredFlags()
		}
		switch {
		case err == nil:
			return nil
		case strings.HasPrefix(err.Error(), "unknown command"): // what cobra.NoArgs says
			return usagef("unexpected argument %q; expected %s", given[0], cmd.UseLine())
		}
		return usagef("%w; expected %s", err, cmd.UseLine())
	}
	for _, sub := range cmd.Commands() {
		if sub.Name() == "help" {
			sub.Args = validateHelpArgs
			continue
		}
		reportUsageErrors(sub)
	}
}

// validateHelpArgs looks at what help is asked for.
func validateHelpArgs(cmd *cobra.Command, given []string) error {
	if found, rest, err := cmd.Root().Find(given); err == nil && (found != cmd.Root() || len(rest) == 0) {
		return nil
	}
	return usagef("unknown command %q; expected one of %s", given[0], strings.Join(availableSubcommands(cmd.Root()), ", "))
}

// availableSubcommands names the commands directly below one.
func availableSubcommands(cmd *cobra.Command) []string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return names
}

// newVersionCommand prints what --version does.
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of Myriad, or the commit, and what it was built with",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", cmd.Root().DisplayName(), buildDescription())
			return err
		},
	}
}

// buildDescription names the build.
func buildDescription() string {
	return fmt.Sprintf("%s %s %s/%s", cmp.Or(version.Myriad(), "(devel)"), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
