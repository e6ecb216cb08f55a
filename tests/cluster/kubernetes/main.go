// Command kubernetes is the part of a control plane that the tests start, as one program: it runs the component whose
// name it is called by.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func command(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllers.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand()
	}
	fmt.Fprintf(os.Stderr, "%s: not the name of a component\n", name)
	os.Exit(2)
	return nil
}

func main() { os.Exit(cli.Run(command(filepath.Base(os.Args[0])))) }
