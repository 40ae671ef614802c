package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commandHelp contains the help of each command. The keys are the names of the commands. --help lists only the flags in
// commonFlags. If commonFlags is "", --help lists all flags.
var commandHelp = map[string]struct{ examples, commonFlags string }{
	"agent":   {agentExamples, ""},
	"article": {"  myriad article ten-thousand --scale small", ""},
	"bench":   {benchExamples, ""},
	"doctor":  {doctorExamples, "connections side model processes unread closing src target fix yes print json"},
	"hold":    {holdExamples, "connections connect-rate ramp src duration check heartbeat broadcast tls agents expect out quiet"},
	"hub":     {hubExamples, "addr users insecure origin tls-cert tls-key slow-consumer replay cluster join nats admin"},
	"load":    {loadExamples, "connections connect-rate duration rate pipeline message answer unescape-message-args ws tls pubsub expect out"},
	"offer":   {"  myriad offer --rate 5000 --pool ours", ""},
	"park":    {"  myriad park -n 100000", ""},
	"plain":   {"  myriad plain --addr 127.0.0.1:9000 --app lines", ""},
	"plan":    {planExamples, "measure from connections rate size tls memory cores network free spare check json"},
	"report":  {reportExamples, ""},
	"serve":   {serveExamples, "addr app model loops processes workers max-conns max-message idle-timeout heartbeat tls-cert tls-key admin drain"},
}

const (
	benchExamples = `  myriad bench list
  myriad bench quick
  myriad bench peers --peers /tmp/peers --only '/(net|epoll)$'`
	hubExamples = `  myriad hub
  myriad hub --addr :6379 --users users.acl --tls-cert hub.pem --tls-key hub.key
  myriad hub --addr :6379 --users users.acl --nats nats://10.0.0.1:4222`
	reportExamples = `  myriad report run.jsonl --format html --out run.html
  myriad report before.jsonl after.jsonl --expect 'p99<5ms'`
	serveExamples = `  myriad serve
  myriad serve --app lines --addr :9000 --max-conns 100000 --admin 127.0.0.1:9090
  myriad serve --app ws --addr :8443 --tls-cert cert.pem --tls-key key.pem`
)

func setUpHelpRecursively(cmd *cobra.Command) {
	all := commandHelp[cmd.Name()].commonFlags == ""
	cmd.Flags().BoolFunc("help-all", "", func(string) error {
		all = true
		return cmd.Flags().Set("help", "true")
	})
	_ = cmd.Flags().MarkHidden("help-all")
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) { printHelp(cmd.OutOrStdout(), cmd, all) })
	for _, sub := range cmd.Commands() {
		setUpHelpRecursively(sub)
	}
}

func printHelp(out io.Writer, cmd *cobra.Command, allFlags bool) {
	help := commandHelp[cmd.Name()]
	if help.examples != "" {
		fmt.Fprintf(out, "Examples:\n%s\n\n", help.examples)
	}
	if allFlags {
		text := cmd.Long
		if text == "" {
			text = cmd.Short + "."
		}
		fmt.Fprintf(out, "%s\n\n%s", text, cmd.UsageString())
		return
	}
	common := pflag.NewFlagSet("", pflag.ContinueOnError)
	common.SortFlags = false
	for name := range strings.FieldsSeq(help.commonFlags) {
		common.AddFlag(cmd.Flags().Lookup(name))
	}
	fmt.Fprintf(out, "%s.\n\nUsage:\n  %s\n\nCommon flags:\n%s\n\"%s --help-all\" explains the command and lists all flags.\n",
		cmd.Short, cmd.UseLine(), common.FlagUsagesWrapped(helpWidth), cmd.CommandPath())
}
