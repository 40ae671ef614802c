package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
	cmd.SetFlagErrorFunc(loadFlagError)
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
