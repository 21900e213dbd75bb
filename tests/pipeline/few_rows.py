"""Options of Spark for tests: sessions that live for seconds or minutes, and queries over few rows."""

from __future__ import annotations

from typing import Final

#: of a Java that has no time to become fast, and need not check the classes of Spark
JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
#: Java takes longer to generate and compile code for a query, and to plan it again, than to run it over a few rows
CONF: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA,
}
