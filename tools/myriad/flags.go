package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// parsedFlag is a flag with its own function for parsing the value.
type parsedFlag[T any] struct {
	dest  *T
	parse func(string) (T, error)
	text  string
}

func (v *parsedFlag[T]) Set(text string) error {
	read, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.dest, v.text = read, text
	return nil
}

func (v *parsedFlag[T]) String() string { return v.text }
func (v *parsedFlag[T]) Type() string   { return "value" }

// addParsedFlag adds a flag with its own parser. Errors of the parser must be of type quantity.Error.
func addParsedFlag[T any](flags *pflag.FlagSet, dest *T, parse func(string) (T, error), name, short, help string) {
	flags.VarP(&parsedFlag[T]{dest: dest, parse: parse}, name, short, help)
}

type parsedListFlag[T any] struct {
	dest  *[]T
	parse func(string) ([]T, error)
}

func (l *parsedListFlag[T]) Set(text string) error {
	parsed, err := l.parse(text)
	if err != nil {
		return err
	}
	*l.dest = append(*l.dest, parsed...)
	return nil
}

func (l *parsedListFlag[T]) String() string { return "" }
func (l *parsedListFlag[T]) Type() string   { return "value" }

func newOneOfParser(allowed ...string) func(string) (string, error) {
	return func(text string) (string, error) {
		if !slices.Contains(allowed, text) {
			return "", quantity.Error(strings.Join(allowed, " or "))
		}
		return text, nil
	}
}

// validateHostPort returns a usage error if addr is not HOST:PORT.
func validateHostPort(flag, addr string) error {
	_, service, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", service)
	}
	if err != nil {
		return usagef("--%s is %q; expected HOST:PORT, with a port of 0 to 65535", flag, addr)
	}
	return nil
}

// toUsageErrorWithExpectation converts an error of package pflag to a usage error that states the expected input.
func toUsageErrorWithExpectation(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if hint := hintAtIntendedFlag(cmd.Flags(), e); hint != "" {
			return usagef("%w; %s", err, hint)
		}
		return usagef("%w; expected a flag that \"%s --help-all\" lists", err, cmd.CommandPath())
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		kind, _ := pflag.UnquoteUsage(e.GetFlag())
		return usagef("%w; expected --%s %s", err, e.GetFlag().Name, kind)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if want, ok := errors.AsType[quantity.Error](err); ok {
			return usagef("--%s is %q; %w", e.GetFlag().Name, e.GetValue(), want)
		}
		kind := e.GetFlag().Value.Type()
		return usagef("--%s is %q; expected %s", e.GetFlag().Name, e.GetValue(), cmp.Or(expectedByFlagType[kind], "a value of type "+kind))
	}
	return usagef("%w; expected a flag that \"%s --help-all\" lists", err, cmd.CommandPath())
}

// expectedByFlagType describes valid values by the type of a flag in package pflag.
var expectedByFlagType = map[string]string{
	"bool":     "true or false",
	"duration": "a duration such as 1.5s",
	"float64":  "a number",
	"int":      "a whole number",
	"int64":    "a whole number",
	"uint64":   "a whole number of 0 or more",
}

// flagsOfOtherTools maps short flags of other load generators to the equivalent flags of this program.
var flagsOfOtherTools = map[string]struct{ tool, name string }{
	"c": {"wrk", "connections"},
	"D": {"hey", "message-file"},
	"d": {"wrk", "duration"},
	"n": {"hey and ab", "messages"},
	"p": {"ab", "message-file"},
	"R": {"wrk2", "rate"},
	"s": {"wrk", "template-file"},
	"t": {"wrk", "loops"},
	"z": {"hey", "duration"},
}

// hintAtIntendedFlag returns a hint about which flag the user probably meant, or "".
func hintAtIntendedFlag(flags *pflag.FlagSet, unknown *pflag.NotExistError) string {
	shorthands := unknown.GetSpecifiedShortnames()
	if shorthands == "" {
		if name := mostSimilarFlagName(flags, unknown.GetSpecifiedName()); name != "" {
			return "did you mean --" + name + "?"
		}
		return ""
	}
	if name, _, _ := strings.Cut(shorthands, "="); len(name) > 1 && flags.Lookup(name) != nil {
		return "did you mean --" + name + "?"
	}
	other := flagsOfOtherTools[unknown.GetSpecifiedName()]
	here := flags.Lookup(other.name)
	if here == nil {
		return ""
	}
	name := "--" + here.Name
	if here.Shorthand != "" {
		name = "-" + here.Shorthand + ", " + name
	}
	_, help := pflag.UnquoteUsage(here)
	return fmt.Sprintf("-%s of %s is %s here: %s", unknown.GetSpecifiedName(), other.tool, name, help)
}

// mostSimilarFlagName returns the visible flag whose name is most similar to the given one, or "" if none is similar.
func mostSimilarFlagName(flags *pflag.FlagSet, given string) (name string) {
	const minPrefix = 4
	best := len(given)
	flags.VisitAll(func(f *pflag.Flag) {
		distance := editDistance(given, f.Name)
		alike := distance <= max(len(given)/3, 1) || len(given) >= minPrefix && strings.HasPrefix(f.Name, given)
		if alike && !f.Hidden && (name == "" || distance < best) {
			name, best = f.Name, distance
		}
	})
	return name
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

type flagGroup struct {
	title  string
	footer string // printed after the flags, "" for none
	flags  *pflag.FlagSet
}

type flagGroups []flagGroup

func (g *flagGroups) addFlagGroup(title, footer string, addFlags func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	addFlags(flags)
	*g = append(*g, flagGroup{title, footer, flags})
}

func (g flagGroups) addFlagsAndGroupedHelp(cmd *cobra.Command) {
	for _, group := range g {
		cmd.Flags().AddFlagSet(group.flags)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		var out strings.Builder
		fmt.Fprintf(&out, "Usage:\n  %s\n", cmd.UseLine())
		for _, group := range g {
			fmt.Fprintf(&out, "\n%s:\n%s%s", group.title, group.flags.FlagUsagesWrapped(helpWidth), group.footer)
		}
		_, err := fmt.Fprint(cmd.OutOrStderr(), out.String())
		return err
	})
}

const helpWidth = 100
