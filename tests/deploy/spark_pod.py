"""Prints the pod that Spark makes of a driver's pod template: ``python spark_pod.py TEMPLATE``.

Spark reads the template into classes of its own, and would drop a field that they do not have.
"""

from __future__ import annotations

import sys

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway  # type: ignore[attr-defined,unused-ignore]


def main(template: str) -> None:
    """Print pod and driver container as YAML, by the classes that spark-submit uses."""
    gateway = launch_gateway(SparkConf(loadDefaults=False))  # type: ignore[no-untyped-call]
    java, spark = gateway.jvm.java, gateway.jvm.org.apache.spark
    conf = spark.SparkConf()
    for name, value in (
        ("spark.master", "k8s://https://127.0.0.1:1"),
        ("spark.app.name", "orders"),
        ("spark.kubernetes.container.image", "registry.example/orders-etl:1"),
        ("spark.kubernetes.driver.podTemplateFile", template),
        ("spark.kubernetes.submitInDriver", "true"),
    ):
        conf.set(name, value)

    def new(name: str, *values: object) -> object:
        (constructor,) = java.lang.Class.forName(name).getConstructors()
        array = gateway.new_array(java.lang.Object, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return constructor.newInstance(array)

    k8s = "org.apache.spark.deploy.k8s"
    program = new(f"{k8s}.submit.PythonMainAppResource", "local:///orders_etl.py")
    no_arguments = gateway.new_array(java.lang.String, 0)
    nobody = getattr(getattr(gateway.jvm.scala, "None$"), "MODULE$")
    clock = spark.util.SystemClock()
    main_class = "org.apache.spark.deploy.PythonRunner"
    driver = new(
        f"{k8s}.KubernetesDriverConf",
        *(conf, "spark-1", program, main_class, no_arguments, nobody, clock),
    )
    fabric8 = gateway.jvm.io.fabric8.kubernetes.client
    client = fabric8.KubernetesClientBuilder().build()
    builder = spark.deploy.k8s.submit.KubernetesDriverBuilder()
    made = builder.buildFromFeatures(driver, client).pod()
    as_yaml = fabric8.utils.Serialization.asYaml
    sys.stdout.write(as_yaml(made.pod()) + as_yaml(made.container()))
    gateway.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
