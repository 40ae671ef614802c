// Package deploy contains files for production: systemd units, a Dockerfile, a Helm chart, alerts and a dashboard; see
// docs/deploy.md. The only Go code is tests. They are a separate module because of their dependencies.
package deploy
