package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/quantity"
	"github.com/myriad-go/myriad/load"
)

// given says whether a flag is on the command line.
type given func(name string) bool

// value is a flag that a function reads.
type value[T any] struct {
	to    *T
	parse func(string) (T, error)
	text  string
}

func (v *value[T]) Set(text string) error {
	read, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.to, v.text = read, text
	return nil
}

func (v *value[T]) String() string { return v.text }
func (v *value[T]) Type() string   { return "value" }

var _ pflag.Value = (*value[int])(nil)

// flag adds a flag that a function reads; short is "" for none.
func flag[T any](flags *pflag.FlagSet, to *T, parse func(string) (T, error), name, short, help string) {
	flags.VarP(&value[T]{to: to, parse: parse}, name, short, help)
}

// How numbers and times are read.
var (
	parseCount  = quantity.Count
	parseMore   = quantity.Positive
	parseLong   = quantity.Positive64
	parsePeriod = quantity.Period
)

// maxSources bounds how many local addresses --src can name.
const maxSources = load.MaxSources

func parseSources(text string, room int) ([]netip.Addr, error) { return load.ParseSources(text, room) }

// oneOf reads one of a few words.
func oneOf(words ...string) func(string) (string, error) {
	return func(text string) (string, error) {
		for _, w := range words {
			if w == text {
				return text, nil
			}
		}
		return "", quantity.Error(strings.Join(words, " or "))
	}
}

// valueError says what is wrong with a flag, and what was expected.
func valueError(cmd *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if want, found := errors.AsType[quantity.Error](err); ok && found {
		return usagef("--%s is %q; %w", invalid.GetFlag().Name, invalid.GetValue(), want)
	}
	return flagError(cmd, err)
}

// flagGroup is some flags of a command, under a title of their own in its help.
type flagGroup struct {
	title string
	text  string // behind the flags, "" for none
	flags *pflag.FlagSet
}

// flagGroups is a command's flags in groups.
type flagGroups struct{ list []flagGroup }

// add adds a group that fill makes.
func (g *flagGroups) add(title, text string, fill func(*pflag.FlagSet)) {
	flags := pflag.NewFlagSet(title, pflag.ContinueOnError)
	flags.SortFlags = false
	fill(flags)
	g.list = append(g.list, flagGroup{title, text, flags})
}

// giveTo makes the groups the flags of a command, and its help show them.
func (g *flagGroups) giveTo(cmd *cobra.Command) {
	for _, group := range g.list {
		cmd.Flags().AddFlagSet(group.flags)
	}
	cmd.SetFlagErrorFunc(valueError)
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		_, err := fmt.Fprint(cmd.OutOrStderr(), g.usage(cmd))
		return err
	})
}

func (g *flagGroups) usage(cmd *cobra.Command) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
	for _, group := range g.list {
		fmt.Fprintf(&out, "\n%s:\n%s%s", group.title, group.flags.FlagUsagesWrapped(helpWidth), group.text)
	}
	return out.String()
}

// helpWidth is the columns of a line of help.
const helpWidth = 100
